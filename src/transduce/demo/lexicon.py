"""The words of `transduce demo`: a small English-German dictionary.

English is on the left, German on the right. The tables hold only the forms that no rule of `inflection` produces.
Words are grouped by kind, so that people eat food and open doors, and not the reverse. No form of an English noun, verb
or adjective belongs to two words. This is one of the reasons why an English sentence has one German translation.
"""

from transduce.demo.inflection import (
    PLACES,
    Adjective,
    Adverb,
    Case,
    City,
    Column,
    Complement,
    Determiner,
    Kind,
    Modal,
    Name,
    Noun,
    Preposition,
    Pronoun,
    Verb,
    add_s,
    weak_participle,
    weak_third_person,
)

ACCUSATIVE: tuple[Case, ...] = ("accusative",)
PEOPLE: tuple[Kind, ...] = ("person",)
ALIVE: tuple[Kind, ...] = ("person", "animal")
GOODS: tuple[Kind, ...] = ("text", "opening", "device", "clothing", "thing")
PORTABLE: tuple[Kind, ...] = ("text", "clothing", "thing")
COLORED: tuple[Kind, ...] = ("opening", "clothing", "thing")
FOOD: tuple[Kind, ...] = ("food", "drink")


def _entries(table: str) -> list[list[str]]:
    return [entry.split() for entry in table.split(",")]


def _nouns(kind: Kind, table: str) -> tuple[Noun, ...]:
    """`man/men der Mann/Männer`; no English plural: add -s; no German one: a mass noun; *: n-declension."""
    genders: dict[str, Column] = {"der": "masculine", "die": "feminine", "das": "neuter"}
    nouns = []
    for english, article, german in _entries(table):
        singular, _, plural = english.partition("/")
        lemma, _, lemmas = german.rstrip("*").partition("/")
        plurals = (plural or add_s(singular), lemmas) if lemmas else None
        nouns.append(Noun(kind, singular, lemma, genders[article], plurals, german.endswith("*")))
    return tuple(nouns)


def _adjectives(rank: int, kinds: tuple[Kind, ...], table: str, *, gradable: bool = True) -> tuple[Adjective, ...]:
    """`dark dunkel/dunkl`: the stem is given where it is not the adjective itself."""
    adjectives = []
    for english, german in _entries(table):
        whole, _, stem = german.partition("/")
        adjectives.append(Adjective(english, whole, stem or whole, rank, kinds, gradable))
    return tuple(adjectives)


def _verbs(
    table: str,
    *,
    complement: Complement = "object",
    subjects: tuple[Kind, ...] = PEOPLE,
    objects: tuple[Kind, ...] = (),
    cases: tuple[Case, ...] = ACCUSATIVE,
) -> tuple[Verb, ...]:
    """`get|up got auf|stehen - gestanden sein`: base, past, infinitive, third person, participle, auxiliary.

    `|` splits off a particle that moves (picks him up; macht auf), `+` a preposition that stays (looks for him).
    A third person missing or `-`, and a missing participle, are weak. A past of `-` is spelt like the base.
    """
    verbs = []
    for english, past, german, *forms in _entries(table):
        base, _, particle = english.replace("+", "|").partition("|")
        prefix, _, infinitive = german.rpartition("|")
        third, participle, auxiliary = (*forms, "-", "-", "-")[:3]
        verbs.append(
            Verb(
                english=base,
                past=None if past == "-" else past,
                particle=particle,
                particle_moves="|" in english,
                german=infinitive,
                prefix=prefix,
                third=weak_third_person(infinitive) if third == "-" else third,
                participle=prefix + (weak_participle(infinitive) if participle == "-" else participle),
                auxiliary="sein" if auxiliary == "sein" else "haben",
                subjects=subjects,
                complement=complement,
                objects=objects,
                cases=cases,
            )
        )
    return tuple(verbs)


NOUNS: dict[Kind, tuple[Noun, ...]] = {
    "person": _nouns(
        "person",
        """
        man/men der Mann/Männer, woman/women die Frau/Frauen, child/children das Kind/Kinder,
        boy der Junge/Jungen*, girl das Mädchen/Mädchen, mother die Mutter/Mütter,
        father der Vater/Väter, brother der Bruder/Brüder, sister die Schwester/Schwestern,
        son der Sohn/Söhne, daughter die Tochter/Töchter, uncle der Onkel/Onkel, aunt die Tante/Tanten,
        friend der Freund/Freunde, neighbor der Nachbar/Nachbarn*, teacher der Lehrer/Lehrer,
        doctor der Arzt/Ärzte, student der Student/Studenten*, guest der Gast/Gäste,
        artist der Künstler/Künstler, queen die Königin/Königinnen, prince der Prinz/Prinzen*,
        actress die Schauspielerin/Schauspielerinnen
        """,
    ),
    "animal": _nouns(
        "animal",
        """
        dog der Hund/Hunde, cat die Katze/Katzen, horse das Pferd/Pferde, bird der Vogel/Vögel,
        bear der Bär/Bären*, lion der Löwe/Löwen*, mouse/mice die Maus/Mäuse, cow die Kuh/Kühe
        """,
    ),
    "food": _nouns(
        "food",
        """
        apple der Apfel/Äpfel, egg das Ei/Eier, banana die Banane/Bananen,
        tomato/tomatoes die Tomate/Tomaten, potato/potatoes die Kartoffel/Kartoffeln,
        cake der Kuchen/Kuchen, bread das Brot, cheese der Käse, soup die Suppe
        """,
    ),
    "drink": _nouns(
        "drink",
        """
        water das Wasser, milk die Milch, coffee der Kaffee, tea der Tee, juice der Saft
        """,
    ),
    "text": _nouns(
        "text",
        """
        book das Buch/Bücher, letter der Brief/Briefe, newspaper die Zeitung/Zeitungen,
        poem das Gedicht/Gedichte, story die Geschichte/Geschichten
        """,
    ),
    "opening": _nouns(
        "opening",
        """
        door die Tür/Türen, window das Fenster/Fenster, suitcase der Koffer/Koffer, box die Kiste/Kisten
        """,
    ),
    "device": _nouns(
        "device",
        """
        lamp die Lampe/Lampen, radio das Radio/Radios, computer der Computer/Computer,
        machine die Maschine/Maschinen
        """,
    ),
    "clothing": _nouns(
        "clothing",
        """
        coat der Mantel/Mäntel, hat der Hut/Hüte, shirt das Hemd/Hemden, dress das Kleid/Kleider,
        jacket die Jacke/Jacken, shoe der Schuh/Schuhe
        """,
    ),
    "thing": _nouns(
        "thing",
        """
        table der Tisch/Tische, chair der Stuhl/Stühle, car das Auto/Autos, bicycle das Fahrrad/Fahrräder,
        picture das Bild/Bilder, key der Schlüssel/Schlüssel, bag die Tasche/Taschen, clock die Uhr/Uhren,
        cup die Tasse/Tassen, flower die Blume/Blumen, gift das Geschenk/Geschenke,
        umbrella der Regenschirm/Regenschirme
        """,
    ),
    "building": _nouns(
        "building",
        """
        house das Haus/Häuser, school die Schule/Schulen, hotel das Hotel/Hotels,
        museum das Museum/Museen, castle das Schloss/Schlösser,
        library/libraries die Bibliothek/Bibliotheken, station der Bahnhof/Bahnhöfe
        """,
    ),
    "area": _nouns(
        "area",
        """
        garden der Garten/Gärten, city die Stadt/Städte, village das Dorf/Dörfer, park der Park/Parks,
        forest der Wald/Wälder, kitchen die Küche/Küchen, room das Zimmer/Zimmer
        """,
    ),
    "surface": _nouns(
        "surface",
        """
        bridge die Brücke/Brücken, street die Straße/Straßen, mountain der Berg/Berge,
        ship das Schiff/Schiffe
        """,
    ),
}

ADJECTIVES: tuple[Adjective, ...] = (
    *_adjectives(1, PEOPLE, "friendly freundlich, polite höflich, rich reich, poor arm"),
    *_adjectives(1, ALIVE, "clever klug, brave mutig"),
    *_adjectives(1, GOODS, "cheap billig"),
    *_adjectives(1, (*GOODS, *FOOD), "expensive teuer/teur"),
    *_adjectives(1, (*PORTABLE, *PLACES), "beautiful schön"),
    *_adjectives(1, PLACES, "famous berühmt"),
    *_adjectives(1, FOOD, "good gut"),
    *_adjectives(2, PEOPLE, "tall groß"),
    *_adjectives(2, ("animal", "opening", "device", "clothing", "thing", *PLACES), "big groß, small klein"),
    *_adjectives(2, ("text",), "long lang, short kurz"),
    *_adjectives(2, ("opening", "device", "thing"), "heavy schwer"),
    *_adjectives(3, ALIVE, "tired müde/müd, happy glücklich, sad traurig, hungry hungrig, strong stark, sick krank"),
    *_adjectives(3, ("opening", "device", "thing"), "broken kaputt", gradable=False),
    *_adjectives(3, PLACES, "quiet ruhig, dark dunkel/dunkl, dirty schmutzig"),
    *_adjectives(3, FOOD, "warm warm, cold kalt"),
    *_adjectives(4, (*ALIVE, *GOODS, *PLACES), "old alt"),
    *_adjectives(4, ALIVE, "young jung"),
    *_adjectives(4, GOODS, "new neu"),
    *_adjectives(4, FOOD, "fresh frisch, sweet süß"),
    *_adjectives(5, COLORED, "red rot, blue blau, green grün", gradable=False),
    *_adjectives(5, ("animal", *COLORED), "white weiß, black schwarz, brown braun", gradable=False),
)

(HAVE,) = _verbs("have had haben hat gehabt", objects=("animal", *PORTABLE))
VERBS: tuple[Verb, ...] = (
    *_verbs(
        """
        sleep slept schlafen schläft geschlafen, wait waited warten, play played spielen,
        swim swam schwimmen - geschwommen sein, come|back came zurück|kommen - gekommen sein,
        fall|asleep fell ein|schlafen schläft geschlafen sein
        """,
        complement="nothing",
        subjects=ALIVE,
        cases=(),
    ),
    *_verbs(
        """
        sing sang singen - gesungen, dance danced tanzen, laugh laughed lachen, cry cried weinen,
        work worked arbeiten, cook cooked kochen, get|up got auf|stehen - gestanden sein,
        arrive arrived an|kommen - gekommen sein
        """,
        complement="nothing",
        cases=(),
    ),
    *_verbs("see saw sehen sieht gesehen, hear heard hören", subjects=ALIVE, objects=ALIVE),
    *_verbs("love loved lieben, watch watched beobachten, wake woke wecken, paint painted malen", objects=ALIVE),
    *_verbs("invite invited ein|laden lädt geladen, call called an|rufen - gerufen", objects=PEOPLE),
    *_verbs("visit visited besuchen, pick|up picked ab|holen", objects=PEOPLE),
    *_verbs("find found finden - gefunden, look+for looked suchen", objects=(*ALIVE, *PORTABLE)),
    *_verbs("buy bought kaufen, sell sold verkaufen", objects=(*GOODS, *FOOD)),
    *_verbs("bring|along brought mit|bringen - gebracht, need needed brauchen", objects=(*PORTABLE, *FOOD)),
    *_verbs("lose lost verlieren - verloren, forget forgot vergessen vergisst vergessen", objects=PORTABLE),
    *_verbs("eat ate essen isst gegessen", objects=("food",)),
    *_verbs("drink drank trinken - getrunken", objects=("drink",)),
    *_verbs("taste tasted probieren, order ordered bestellen", objects=FOOD),
    *_verbs("read - lesen liest gelesen, write wrote schreiben - geschrieben", objects=("text",)),
    *_verbs("open opened auf|machen, close closed zu|machen", objects=("opening",)),
    *_verbs(
        "turn|on turned ein|schalten, turn|off turned aus|schalten, repair repaired reparieren",
        objects=("device",),
    ),
    *_verbs(
        "put|on - an|ziehen - gezogen, take|off took aus|ziehen - gezogen, wash washed waschen wäscht gewaschen",
        objects=("clothing",),
    ),
    *_verbs(
        """
        help helped helfen hilft geholfen, thank thanked danken, trust trusted vertrauen,
        answer answered antworten, listen+to listened zu|hören, congratulate congratulated gratulieren
        """,
        objects=PEOPLE,
        cases=("dative",),
    ),
    *_verbs("follow followed folgen - - sein", subjects=ALIVE, objects=ALIVE, cases=("dative",)),
    *_verbs(
        """
        give gave geben gibt gegeben, show showed zeigen, send sent schicken, lend lent leihen - geliehen,
        offer offered an|bieten - geboten
        """,
        complement="two objects",
        objects=PORTABLE,
        cases=("dative", "accusative"),
    ),
    *_verbs(
        "live lived wohnen, sit sat sitzen - gesessen, stand stood stehen - gestanden",
        complement="place",
        cases=(),
    ),
    *_verbs(
        "go went gehen - gegangen sein, run ran laufen läuft gelaufen sein",
        complement="direction",
        subjects=ALIVE,
        cases=(),
    ),
    *_verbs("travel traveled reisen - - sein", complement="direction", cases=()),
    *_verbs(
        "say said sagen, believe believed glauben, know knew wissen weiß gewusst, hope hoped hoffen",
        complement="that",
        cases=(),
    ),
    *_verbs("ask asked fragen", complement="whether", cases=()),
    *_verbs(
        "try tried versuchen, promise promised versprechen verspricht versprochen, "
        "decide decided beschließen - beschlossen",
        complement="to",
        cases=(),
    ),
    HAVE,
    *_verbs(
        "be was sein ist gewesen sein",
        complement="predicate",
        subjects=(*ALIVE, *GOODS, *FOOD, *PLACES),
        cases=(),
    ),
)

MODALS: tuple[Modal, ...] = (
    Modal("can", "", {"I": "kann", "he": "kann", "they": "können"}),
    Modal("must", "", {"I": "muss", "he": "muss", "they": "müssen"}, negatable=False),
    Modal("should", "", {"I": "sollte", "he": "sollte", "they": "sollten"}),
    Modal(None, "want to", {"I": "will", "he": "will", "they": "wollen"}),
    Modal("would", "like to", {"I": "möchte", "he": "möchte", "they": "möchten"}),
)
FUTURE = Modal("will", "", {"I": "werde", "he": "wird", "they": "werden"})

THE = Determiner(("the", "the"), "", "the", True)
THIS = Determiner(("this", "these"), "dies", "this", True)
OUR = Determiner(("our", "our"), "unser", "a", True)
DEFINITE: tuple[Determiner, ...] = (
    THIS,
    Determiner(("my", "my"), "mein", "a", True),
    OUR,
    Determiner(("his", "his"), "sein", "a", True),
    Determiner(("her", "her"), "ihr", "a", True),
    Determiner(("their", "their"), "ihr", "a", True),
)
A = Determiner(("a", ""), "ein", "a", False)
NO = Determiner(("no", "no"), "kein", "a", False)
QUANTIFIERS: tuple[Determiner, ...] = (
    Determiner(("every", ""), "jed", "this", False),
    Determiner(("", "all"), "all", "this", False),
    Determiner(("", "many"), "viel", "many", False),
    Determiner(("", "some"), "einig", "many", False),
    Determiner(("", "two"), "zwei", "two", False),
    Determiner(("", "three"), "drei", "two", False),
)

# Facts about single words that keep the sentences sensible.
KIN = frozenset({"mother", "father", "brother", "sister", "son", "daughter", "uncle", "aunt"})  # mostly with an owner
ONLY_ONE = frozenset({"mother", "father"})  # a person has only one
NOT_OWNED = frozenset(  # "meine Frau" means my wife, not my woman
    {"man", "woman", "boy", "girl", "queen", "prince", "actress", "bear", "lion", "mountain", "station"}
)
PASSING = frozenset({"tired", "happy", "sad", "hungry", "sick"})  # states that pass
LASTING = frozenset({"live", "have", "need", "love", "know", "trust"})  # lasting states: no time, no place
NOT_WILLED = frozenset(  # verbs that do not fit can, want to, should
    {"be", "have", "need", "love", "hear", "lose", "forget", "say", "believe", "know", "hope", "ask", "arrive"}
)

PRONOUNS: tuple[Pronoun, ...] = (
    Pronoun(("I", "me"), {"nominative": "ich", "accusative": "mich", "dative": "mir"}, "I", True),
    Pronoun(("we", "us"), {"nominative": "wir", "accusative": "uns", "dative": "uns"}, "they", True),
    Pronoun(("he", "him"), {"nominative": "er", "accusative": "ihn", "dative": "ihm"}, "he", False),
    Pronoun(("she", "her"), {"nominative": "sie", "accusative": "sie", "dative": "ihr"}, "he", False),
    Pronoun(("they", "them"), {"nominative": "sie", "accusative": "sie", "dative": "ihnen"}, "they", False),
)
NAMES = tuple(Name(name) for name in ("Anna", "Emma", "Julia", "Maria", "David", "Martin", "Peter", "Robert"))
CITIES: tuple[City, ...] = (
    City("Berlin", "Berlin"),
    City("Cologne", "Köln"),
    City("Munich", "München"),
    City("Rome", "Rom"),
    City("Vienna", "Wien"),
)

TIMES: tuple[Adverb, ...] = (
    Adverb("today", "heute"),
    Adverb("now", "jetzt", "present"),
    Adverb("every day", "jeden Tag", "present"),
    Adverb("yesterday", "gestern", "past"),
    Adverb("last week", "letzte Woche", "past"),
    Adverb("tomorrow", "morgen", "future"),
    Adverb("soon", "bald", "future"),
    Adverb("in the morning", "am Morgen"),
    Adverb("in the evening", "am Abend"),
    Adverb("on Sunday", "am Sonntag"),
    Adverb("in summer", "im Sommer"),
)
FREQUENCIES: tuple[Adverb, ...] = (
    Adverb("always", "immer"),
    Adverb("often", "oft"),
    Adverb("sometimes", "manchmal"),
)
NEVER = Adverb("never", "nie")
VERY = Adverb("very", "sehr")
SUBORDINATORS: tuple[Adverb, ...] = (
    Adverb("because", "weil"),
    Adverb("although", "obwohl"),
    Adverb("while", "während"),
    Adverb("if", "wenn", "present"),
)
JOINTS: tuple[Adverb, ...] = (Adverb("and", "und"), Adverb("but", ", aber"))
QUESTION_ADVERBS: tuple[Adverb, ...] = (Adverb("where", "wo"), Adverb("when", "wann"), Adverb("why", "warum"))

WHO = Pronoun(("who", "whom"), {"nominative": "wer", "accusative": "wen", "dative": "wem"}, "he", False)
WHAT = Pronoun(("what", "what"), {"nominative": "was", "accusative": "was"}, "he", False)

IN = Preposition("in", "in", "dative")
ON = Preposition("on", "auf", "dative")
TO = Preposition("to", "nach", "dative")
INTO = Preposition("into", "in", "accusative")
WITH = Preposition("with", "mit", "dative")
WITHOUT = Preposition("without", "ohne", "accusative")
FOR = Preposition("for", "für", "accusative")
COMPANY: dict[Preposition, frozenset[str]] = {  # with the verbs that take it
    WITH: frozenset({"play", "sing", "dance", "work", "cook", "arrive", "come"}),
    WITHOUT: frozenset({"play", "sing", "dance", "work", "cook", "arrive", "come"}),
    FOR: frozenset({"sing", "cook", "work", "buy", "write", "paint", "repair"}),
}
AT: dict[Kind, tuple[Preposition, ...]] = {
    "area": (IN,),
    "surface": (ON,),
    "building": (
        IN,
        Preposition("behind", "hinter", "dative"),
        Preposition("in front of", "vor", "dative"),
        Preposition("next to", "neben", "dative"),
    ),
}
