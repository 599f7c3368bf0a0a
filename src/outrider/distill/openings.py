"""The first words of what a user may say: a target goes on from them when it interviews itself.

Varied openings make varied tasks; names, things and topics vary them further. A `|` stands between two.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split("|"))


CHAT = _words(
    "What|What is|What are|What are the|How|How do|How can I|How does|Why|Why do|When|Where|Which|Who|Can you|"
    "Could you|Could you please|Can you explain|I|I am|I want|I need|I'm|My|Please|Write|Write a|"
    "Write a short story|Write a poem|Write an essay|Write an email|Compose|Create|Describe|Explain|Discuss|"
    "Give me|List|Name|Compare|Imagine|Suppose|Help me|Tell me|Draft|Design|Develop|Generate|Identify|Edit|"
    "Rewrite|Summarize|Classify|Extract|Evaluate|Analyze|Solve|Calculate|Find|If|In|The|Is|Are|Do|Does|Should|"
    "Let's|As a|Given|Consider|Provide|Suggest|Recommend|Outline|Make|Convert|Correct|Use|Show|For|A|An|There|"
    "Here|Hello|Hi|Based on|Take|Read|Choose|Define|What would|How many|How much|What if|Why is"
)
CODE = _words(
    "Write a Python function|Write a program|Implement|Write a simple website|Given an array|"
    "Create a JavaScript|Write a SQL query|Fix the bug|Write a regular expression|Write a C++ program|"
    "Write a bash script"
)
ROLES = _words(
    "Pretend to be|Imagine yourself as|You are a|Act as a|Take on the role of|Now you are a|Please assume the role of"
)
FOLLOW_UPS = _words(
    "Rewrite|Now|Can you|What|How|Why|Could you|Please|Take your previous response and|Revise|Make|Write|"
    "Explain|And|Give|Translate|Summarize|Is|What about|Based on|Thanks|Add|Do the same|Which|Who|In your|"
    "Describe|Tell me|If|Change"
)
QUESTIONS = _words(
    "who|who is|who was|who played|who sings|who wrote|who won|who invented|when|when did|when was|when is|"
    "where|where is|where did|where was|what is|what is the name of|what was|what does|what are|how many|"
    "how long|how much|how old|which|which country|what year did|what type of|the|how do you|why did|in which|"
    "name the|what do|which state"
)
NAMES = _words(
    "Ali|Amy|Anna|Ben|Carla|Chen|Dan|Elena|Emma|Fatima|George|Hana|Igor|Jack|John|Julia|Kate|Leo|Liam|Lucy|"
    "Maria|Max|Mia|Nina|Olga|Omar|Paul|Pedro|Rosa|Sam|Sara|Tom|Uma|Vera|Will|Yuki|Zoe"
)
THINGS = _words(
    "apples|books|pencils|cookies|marbles|stickers|dollars|tickets|flowers|eggs|cards|coins|oranges|toys|"
    "shirts|boxes|cars|chairs|pounds of flour"
)
SUMS = _words(
    "{name} has {count} {things}|{name} buys|{name} wants to|{name} and {other}|{name} is|A train|A farmer|"
    "A shop|A bakery|A school|A tank|A company|There are {count}|{name} bought {count} {things}|If {name}|"
    "{name} earns|{name} spends|Each|{name} can|Every day, {name}|{name} decided to|{name} sold {count}"
)
TRANSLATIONS = (
    *("Translate {language} to English: {first}",) * 4,
    "Translate the following {language} text to English: {first}",
    "Translate from {language} to English:\n{first}",
)
FIRST_WORDS = {
    "German": _words(
        "Der|Die|Das|Ein|Eine|In|Nach|Bei|Wir|Ich|Er|Sie|Es|Am|Im|Mit|Für|Auf|Seit|Zwei|Viele|Diese|Wenn|Als|"
        "Auch|Laut|Unter|Vor|Zum|Über|Heute|Gestern|Deutschland|Berlin|Präsident|Polizei|Man|Was|Wie|Alle|Jetzt"
    ),
    "French": _words("Le|La|Les|Un|Une|Il|Elle|Nous|Dans|Pour|Selon|Depuis|Quand|Ce|Paris"),
    "Spanish": _words("El|La|Los|Un|Una|En|Para|Según|Desde|Cuando|Este|Madrid|No|Hay"),
    "Italian": _words("Il|La|Un|Una|In|Per|Secondo|Quando|Questo|Roma|Non|Gli"),
}
NEWS = tuple(
    lead + first
    for lead in ("Summarize: ", "Summarize the following text: ")
    for first in _words(
        "The|A|In|Police|By|After|It|On Monday|Two|President|Scientists|She was|He was|An|London|This is|"
        "Former|(CNN)|New York|For|Britain's|At least|There|Researchers|Thousands of|One of"
    )
)
PASSAGES = _words(
    "Write a news article about {topic}|Write a newspaper report about {topic}.|"
    "Write an encyclopedia article about {topic}|Explain {topic}|Tell me about {topic}|"
    "Write a story about {topic}"
)
SUMMARIES = ("Summarize: ", "Summarize: ", "Summarize the following:\n", "Summarize the text below.\n\n")
TOPICS = _words(
    "a trip to Japan|the history of bread|black holes|a lost dog|the French Revolution|machine learning|"
    "a haunted house|the stock market|climate change|a healthy breakfast|learning the piano|electric cars|"
    "the Roman Empire|a football match|the immune system|space travel|coffee|a small village|"
    "the Amazon rainforest|social media|a court case|an earthquake|a film festival|wind energy|"
    "the life of a nurse|a bank robbery|ancient Egypt|a royal wedding|a new smartphone|vaccines|"
    "a presidential election|a chess tournament|volcanoes|the moon landing|poverty in cities|a train crash|"
    "gardening|bees|the Olympics|plastic in the oceans|a missing plane|the human brain|a rescue at sea|"
    "tax reform|a rock band|wolves|a museum robbery|water shortage|the printing press|sleep|a border dispute|"
    "tourism in Spain|a murder trial|jazz music|DNA|hurricanes|a baseball pitcher|the price of oil|"
    "a police investigation|Shakespeare|cybersecurity|migrants|penguins|the Second World War|inflation|"
    "a TV series|the Supreme Court|mountain climbing|cancer research|an airport|a painter|Mars"
)
